"""Mutation tests: small changes of the kernels' sources that their trials must detect."""
