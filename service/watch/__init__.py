"""What operators see of the service: records, metrics, traces, the log, and the page."""
