"""An HTTP server for one model: `runnel serve`."""
