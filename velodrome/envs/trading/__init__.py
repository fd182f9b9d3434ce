"""One instrument, one account. Read `rule`, then `account`, `config` and `world`."""
