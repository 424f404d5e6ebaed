"""``pgque demo``: an order pipeline on a real PostgreSQL, from sending to dead letters and back.

The story is in ``run``; ``producer`` and ``worker`` are the programs it starts.
"""
