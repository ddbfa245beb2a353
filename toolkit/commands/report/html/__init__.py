"""The HTML renderer of reports: `page.render`."""
