"""What a run has made, opened for looking at: its skill dictionary, how that came to be, and its episodes in phrases."""
