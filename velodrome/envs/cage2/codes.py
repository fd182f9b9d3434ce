"""CAGE-2's codes: who acts and how, what came of it, and the bits of a host's nibble."""

from __future__ import annotations

B_LINE, MEANDER, SLEEPING = range(3)  # in the order of RED_AGENTS
SLEEP, SWEEP, SCAN, EXPLOIT, ESCALATE, IMPACT = range(6)  # in the order of RED_ACTIONS
FAILED, SUCCEEDED, UNKNOWN, EMPTY = range(4)  # EMPTY: a port scan that reached nobody, which reports success
NOBODY = -1  # target of Sleep

ENTERPRISE, OPERATIONAL, USER = range(3)  # subnets
OPERATIONAL_HOSTS = 0x11110000
OP_SERVER, USER0 = 7, 8  # hosts

# Kinds of Blue's actions: those without a host, then blocks of 13.
IDLE, ANALYSE, REMOVE, FIRST_DECOY, RESTORE = 0, 1, 2, 3, 11
FIRST_DECOY_ACTION, FIRST_RESTORE = 28, 132

# Bits of a host's nibble in Network.known, what Red has found out; the last is what Blue has seen.
KNOWN_IP, KNOWN_NAME, PORTS_KNOWN, SCAN_SEEN = 1, 2, 4, 8
# Bits of a host's nibble in Network.access. REMOVABLE and OTHER are user sessions; OTHER are those that Remove leaves.
REMOVABLE, OTHER, PRIVILEGED, FILE = 1, 2, 4, 8
SESSION = REMOVABLE | OTHER | PRIVILEGED
# Bits of Network.service, the process OTService on Op_Server0: it runs; Impact finds the process; it is registered as
# active; Red has seen it.
PRESENT, HANDLE, ACTIVE, SEEN_BY_RED = 1, 2, 4, 8
