"""Messages to a webhook, or to a service that apprise knows (docs/notify.md)."""
