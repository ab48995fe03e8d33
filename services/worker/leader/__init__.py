"""The group leader: takes work, plans steps, sends frames. It never imports torch."""
