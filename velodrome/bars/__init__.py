"""Outside data in: file readers, synthetic generators, and the checks that refuse or report what they find."""
