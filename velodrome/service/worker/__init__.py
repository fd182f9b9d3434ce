"""The processes of a training under a service: who trains, who keeps the lease, and from what both are forked.

Read `task` (what they are told), `trainer` (trains, and says how that ended), `keeper` (starts it, keeps the lease,
stops it when asked, and writes its end into the store) and `nursery` (has imported everything, so that starting a
training takes no time).
"""
