"""Everything that people write or read: settings, label and annotation names, reasons. No behaviour, no I/O."""
