"""The names and data that users of other systems know, thin over the rest. Read `torchtrade`, then `alpaca_crypto`."""
