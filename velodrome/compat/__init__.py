"""The names and data that users of other systems know, thin over the rest. Read `recordings`, what replays share, then
`torchtrade` and `alpaca_crypto`; then the doors of neighbours: `cappuccino`, `drl_trading`, `intraday_jules` and
`workflow_rl` (docs/migrate/ has a page for each).
"""
