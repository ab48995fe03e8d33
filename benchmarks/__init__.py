"""Measurements behind `ryz bench`. No service imports them."""
