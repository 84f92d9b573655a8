"""What several test modules share: what they compare with, and lists of cases as data. No tests."""
