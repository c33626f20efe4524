"""Weight formats inside compiled code: elements decoded and encoded, rows packed and gathered."""
