"""One module a figure; each measures ours and the peers in turns, so that they share the noise."""
