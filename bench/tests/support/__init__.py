"""What the lab's tests share: pages in a browser, programs, made-up results and files."""
