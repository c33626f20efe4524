"""Products with packed weights: the variants of linear and linear_experts, and what they share."""
