"""What others test their own pieces with: suites written against the protocols. They need pytest; nothing else here imports them."""
