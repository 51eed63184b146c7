package openai

import (
	"encoding/json"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Error is OpenAI's description of a failure. Empty Param and Code are null on the wire.
type Error struct {
	Message string `json:"message"` // for people
	Type    string `json:"type"`    // class of the failure, such as invalid_request_error
	Param   string `json:"param"`   // JSON path of the field at fault
	Code    string `json:"code"`    // for programs
}

// AppendError appends {"error":{"message","type","param","code"}}: the body of a failed request and the data of an
// error event in a stream.
func AppendError(dst []byte, e *Error) []byte {
	// Written by hand, as answers are: the members keep OpenAI's order, and null stands where a client expects the key.
	dst = append(dst, `{"error":{"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"param":`...)
	dst = appendStringOrNull(dst, e.Param)
	dst = append(dst, `,"code":`...)
	dst = appendStringOrNull(dst, e.Code)
	return append(dst, "}}"...)
}

// FlatError is Dynamo's description of a failure: Type is the HTTP reason phrase and Code the status. In a stream,
// Type is a slug such as internal_server_error.
type FlatError struct {
	Message string          `json:"message"`           // for people
	Type    string          `json:"type"`              // Not Found, say
	Code    int             `json:"code"`              // HTTP status
	Details json.RawMessage `json:"details,omitempty"` // object of further facts
}

// AppendFlatError appends {"message","type","code","details"?}: the body of a failed request.
func AppendFlatError(dst []byte, e *FlatError) []byte {
	dst = appendFlatStart(append(dst, '{'), e)
	if len(e.Details) > 0 {
		dst = append(append(dst, `,"details":`...), e.Details...)
	}
	return append(dst, '}')
}

// AppendFlatStreamError appends {"error":{"message","type","code"}}: the data of an error event in a stream.
func AppendFlatStreamError(dst []byte, e *FlatError) []byte {
	return append(appendFlatStart(append(dst, `{"error":{`...), e), "}}"...)
}

// appendFlatStart appends the members that both flat forms share.
func appendFlatStart(dst []byte, e *FlatError) []byte {
	dst = append(dst, `"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = appendString(dst, e.Type)
	dst = append(dst, `,"code":`...)
	return strconv.AppendInt(dst, int64(e.Code), 10)
}

// AppendDeleted appends {"id","object","deleted":true}: the answer to a deletion.
func AppendDeleted(dst []byte, id, object string) []byte {
	dst = appendString(append(dst, `{"id":`...), id)
	dst = appendString(append(dst, `,"object":`...), object)
	return append(dst, `,"deleted":true}`...)
}

// appendStringOrNull appends null for the empty string.
func appendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return appendString(dst, s)
}

// appendString appends s as a JSON string; invalid UTF-8 becomes U+FFFD.
func appendString(dst []byte, s string) []byte {
	out, err := jsontext.AppendQuote(dst, s)
	if err != nil { // only invalid UTF-8, which has been replaced in out
		return out
	}
	return out
}
