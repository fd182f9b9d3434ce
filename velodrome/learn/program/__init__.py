"""A policy as a list of operations on a row of numbers, for a compiled loop that acts bar after bar without torch.

torch takes a third of a millisecond for the few products that one account's next action needs, this a thousandth. The
numbers are the network's own, rounded in another order: where two actions are equally good to the last bits, the two
ways may differ. An ensemble is its members' operations one after the other, and what they do together. Networks of a
user's own have no program, and act through torch. Read `running`, what each operation does, then `writing`, which
writes them down for a network.
"""

from velodrome.learn.program.running import Program, decide
from velodrome.learn.program.writing import program_of

__all__ = ["Program", "decide", "program_of"]
