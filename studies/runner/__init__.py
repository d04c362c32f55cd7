"""What every study shares: how it is declared, run, kept, judged and written down."""
