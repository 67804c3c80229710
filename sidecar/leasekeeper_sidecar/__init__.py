"""The sidecar: takes part in the election and tells the app, in any language, whether it leads."""
