"""How a float network becomes a quantised one: torchao's PT2E, with a target's own quantizer."""
