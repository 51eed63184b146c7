package dispatch

// Fault is faultOf.
var Fault = faultOf
