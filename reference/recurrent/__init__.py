"""Ops with recurrent state: a causal convolution and the scans of state space models."""
