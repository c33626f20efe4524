"""Whole models by family, composed of reference ops."""
