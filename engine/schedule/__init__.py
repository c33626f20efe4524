"""Scheduling of many prompts: admission, composition of steps, and preemption."""
