"""What tests share, a module a subject: it is imported from here, never from another test."""
