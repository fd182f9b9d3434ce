"""Many instruments, one account. Read `rule`, then `sizing`, `orders`, `rewards`, `config` and `world`."""
