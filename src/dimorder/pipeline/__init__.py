"""Define the steps of the pipeline, each from values to values. `api.lower` calls them in sequence.

`source` reads the network and what the caller asks for. `variants` captures the network at one point or
several: a network of fixed sizes is the case of one point. `planning` has the steps from there to the
physical program. `checking` compares that program and the artifact with the network.
"""
