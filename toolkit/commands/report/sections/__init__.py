"""Makes the Page of one job: a file for each section, in the order of page.py."""
