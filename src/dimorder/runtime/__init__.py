"""Call a lowered program: check or adapt its inputs by the contract, then run the target's own runtime."""
