"""Raw data that was written by Pinterest's uploader, without manifests."""
