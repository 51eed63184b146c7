package chattmpl

// MayHideWork is mayHideWork, for tests.
var MayHideWork = mayHideWork
