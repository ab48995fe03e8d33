"""Flow control that several services use: back-off, token buckets, retry budgets, circuits, shares."""
