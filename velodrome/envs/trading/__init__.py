"""One instrument, one account, one decision per bar; `docs/trading.md` states the rule in words.

Read `codes`, `config` (the parameters), `account` (what fills do to it), `state` (what the rule works on), `rewards`,
`orders`, `rule` (the page: `step`, heading by heading) and `world`.
"""

from velodrome.envs.trading.account import RewardAccount

__all__ = ["RewardAccount"]
