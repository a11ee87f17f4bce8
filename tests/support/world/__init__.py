"""The test doubles of the world: `HandClock`, a disk that loses power (`SimDisk`) and a wire that fails (`FaultyWire`).

The simulation adds a network with weather and clocks that run with its tasks (`tests/simulation`).
"""
