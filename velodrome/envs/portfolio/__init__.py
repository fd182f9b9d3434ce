"""Many instruments, one account, one decision per bar; `docs/portfolio.md` states the rule in words.

Read `codes`, `config` (the parameters), `state` (what the rule works on), `orders`, `sizing`, `rewards`, `rule` (the
page: `step`, heading by heading) and `world`.
"""
