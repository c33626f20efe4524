"""linear and linear_experts: products with packed weights, by variant, and common parts."""
