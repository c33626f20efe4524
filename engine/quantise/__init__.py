"""Quantising models: mixes of weight formats, importance matrices, and the new file."""

from engine.quantise.quantise import Choice, QuantiseError, Recipe, choices, quantise

__all__ = ["Choice", "QuantiseError", "Recipe", "choices", "quantise"]
