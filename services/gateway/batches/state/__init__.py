"""What the broker keeps of batches: records, requests that wait, results."""
