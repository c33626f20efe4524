"""Commands of the bench lab, one file each."""
