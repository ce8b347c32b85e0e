"""Published files: listed, downloaded, checked, unpacked, recorded."""
