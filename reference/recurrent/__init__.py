"""What carries a state from token to token: a convolution and two scans."""
