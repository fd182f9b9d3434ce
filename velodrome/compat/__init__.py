"""The names and data that users of other systems know, thin over the rest. Read `recordings`, what replays share, then
`torchtrade` and `alpaca_crypto`.
"""
