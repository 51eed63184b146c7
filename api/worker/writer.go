package worker

import (
	"encoding/binary"
	"math"
	"strconv"
	"unicode/utf8"
)

// writer appends values of a body in one of the codecs, without reflection. Nothing checks that calls make a value: its
// users are few, and tests read back what they write.
type writer struct {
	b     []byte // what has been written, dst included
	codec Codec  // of everything that is written
	err   error  // of the first raw value that was no JSON
}

// open is the state of one map or array being written.
type open struct {
	at int // where its header stands
	n  int // entries so far
}

// openMap begins a map. The number of its entries is written by closeMap, so that optional fields need no counting
// beforehand.
func (w *writer) openMap() open {
	o := open{at: len(w.b)}
	if w.codec == JSON {
		w.b = append(w.b, '{')
	} else {
		// fixmap without entries.
		w.b = append(w.b, 0x80)
	}
	return o
}

// closeMap ends a map. Maps of more than 15 entries need a longer msgpack header, for which their content moves; the
// maps written here are rarely that large. The 65535 entries that the longer header can count are beyond any map
// written here.
func (w *writer) closeMap(o *open) {
	switch {
	case w.codec == JSON:
		w.b = append(w.b, '}')
	case o.n <= 15:
		// The number goes into the low four bits.
		w.b[o.at] |= byte(o.n)
	default:
		// map 16: two bytes more ahead of the content.
		w.b = append(w.b, 0, 0)
		copy(w.b[o.at+3:], w.b[o.at+1:len(w.b)-2])
		w.b[o.at] = 0xde
		binary.BigEndian.PutUint16(w.b[o.at+1:], uint16(o.n))
	}
}

// key writes the key of a map's next entry; its value follows.
func (w *writer) key(o *open, name string) {
	if w.codec == JSON {
		if o.n > 0 {
			w.b = append(w.b, ',')
		}
		w.str(name)
		w.b = append(w.b, ':')
	} else {
		w.str(name)
	}
	o.n++
}

// openArray begins an array of n elements. Unlike a map's, the number of its elements is known, so that its header
// never moves.
func (w *writer) openArray(n int) open {
	o := open{at: len(w.b)}
	if w.codec == JSON {
		w.b = append(w.b, '[')
	} else {
		w.b = appendMsgpackHead(w.b, n, 0x90, 15, 0xdc)
	}
	return o
}

// elem comes before every element of an array.
func (w *writer) elem(o *open) {
	if w.codec == JSON && o.n > 0 {
		w.b = append(w.b, ',')
	}
	o.n++
}

// closeArray ends an array; msgpack needs no mark for it.
func (w *writer) closeArray(*open) {
	if w.codec == JSON {
		w.b = append(w.b, ']')
	}
}

// null writes the absence of a value.
func (w *writer) null() {
	if w.codec == JSON {
		w.b = append(w.b, "null"...)
	} else {
		// nil.
		w.b = append(w.b, 0xc0)
	}
}

// boolean writes true or false.
func (w *writer) boolean(v bool) {
	switch {
	case w.codec == JSON:
		w.b = strconv.AppendBool(w.b, v)
	case v:
		w.b = append(w.b, 0xc3)
	default:
		w.b = append(w.b, 0xc2)
	}
}

// uint writes an unsigned integer, exact up to 64 bits in both codecs.
func (w *writer) uint(v uint64) {
	if w.codec == JSON {
		w.b = strconv.AppendUint(w.b, v, 10)
	} else {
		w.b = appendMsgpackUint(w.b, v)
	}
}

// int writes a signed integer in its shortest form.
func (w *writer) int(v int64) {
	if w.codec == JSON {
		w.b = strconv.AppendInt(w.b, v, 10)
	} else {
		w.b = appendMsgpackInt(w.b, v)
	}
}

// float writes a number that stays a float in both codecs.
func (w *writer) float(v float64) {
	if w.codec == JSON {
		w.b = appendJSONFloat(w.b, v)
	} else {
		w.b = appendMsgpackFloat(w.b, v)
	}
}

// str writes a string. In msgpack it is written as it is: strings come from decoded requests, which are UTF-8.
func (w *writer) str(s string) {
	if w.codec == JSON {
		w.b = appendJSONString(w.b, s)
		return
	}
	w.b = append(appendMsgpackStringHead(w.b, len(s)), s...)
}

// json writes a value given as JSON text; empty is null.
func (w *writer) json(raw []byte) {
	if len(raw) == 0 {
		w.null()
		return
	}
	if w.codec == JSON {
		w.b = append(w.b, raw...)
		return
	}
	// A null keeps the map whole; the error is returned in the end, and the body never used.
	b, err := AppendJSONAsMsgpack(w.b, raw)
	if err != nil {
		if w.err == nil {
			w.err = err
		}
		w.null()
		return
	}
	w.b = b
}

// ids writes token ids. Prompts have thousands of them, so the loop does nothing but append.
func (w *writer) ids(ids []uint32) {
	if w.codec != JSON {
		w.b = appendMsgpackHead(w.b, len(ids), 0x90, 15, 0xdc)
		for _, id := range ids {
			w.b = appendMsgpackUint(w.b, uint64(id))
		}
		return
	}
	w.b = AppendJSONNumbers(w.b, ids)
}

// strs writes an array of strings, which may be empty but is there.
func (w *writer) strs(list []string) {
	a := w.openArray(len(list))
	for _, s := range list {
		w.elem(&a)
		w.str(s)
	}
	w.closeArray(&a)
}

// The following write a field that is null when nil.

// u32Field writes an unsigned integer of 32 bits.
func (w *writer) u32Field(o *open, name string, v *uint32) {
	w.key(o, name)
	if v == nil {
		w.null()
		return
	}
	w.uint(uint64(*v))
}

// u8Field writes an unsigned integer of 8 bits.
func (w *writer) u8Field(o *open, name string, v *uint8) {
	w.key(o, name)
	if v == nil {
		w.null()
		return
	}
	w.uint(uint64(*v))
}

// boolField writes true or false.
func (w *writer) boolField(o *open, name string, v *bool) {
	w.key(o, name)
	if v == nil {
		w.null()
		return
	}
	w.boolean(*v)
}

// floatField writes a number, as a float even when it is whole.
func (w *writer) floatField(o *open, name string, v *float64) {
	w.key(o, name)
	if v == nil {
		w.null()
		return
	}
	w.float(*v)
}

// idsField writes token ids; an empty list isn't null.
func (w *writer) idsField(o *open, name string, v []uint32) {
	w.key(o, name)
	if v == nil {
		w.null()
		return
	}
	w.ids(v)
}

// jsonField writes a field whose value is given as JSON, null when empty.
func (w *writer) jsonField(o *open, name string, v []byte) {
	w.key(o, name)
	w.json(v)
}

// optJSON writes a field that is left out when empty.
func (w *writer) optJSON(o *open, name string, v []byte) {
	if len(v) > 0 {
		w.jsonField(o, name, v)
	}
}

// optStr writes a field that is left out when empty.
func (w *writer) optStr(o *open, name, v string) {
	if v != "" {
		w.key(o, name)
		w.str(v)
	}
}

// optU32 writes a field that is left out when nil.
func (w *writer) optU32(o *open, name string, v *uint32) {
	if v != nil {
		w.u32Field(o, name, v)
	}
}

// optU64 writes a field that is left out when nil. Instance ids use all 64 bits.
func (w *writer) optU64(o *open, name string, v *uint64) {
	if v != nil {
		w.key(o, name)
		w.uint(*v)
	}
}

// appendMsgpackHead appends the header of an array or map of n entries: short|n up to limit, else long with 16 bits or
// long+1 with 32.
func appendMsgpackHead(b []byte, n int, short byte, limit int, long byte) []byte {
	switch {
	case n <= limit:
		return append(b, short|byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, long), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, long+1), uint32(n))
}

// appendMsgpackStringHead appends a string's header. Strings have a form of 8 bits that arrays and maps lack.
func appendMsgpackStringHead(b []byte, n int) []byte {
	if n > 31 && n <= math.MaxUint8 {
		return append(b, 0xd9, byte(n)) // str 8
	}
	return appendMsgpackHead(b, n, 0xa0, 31, 0xda) // fixstr, str 16, str 32
}

// appendMsgpackUint appends an integer in its shortest form, as workers' own encoders do.
func appendMsgpackUint(b []byte, v uint64) []byte {
	switch {
	case v < 0x80:
		return append(b, byte(v)) // positive fixint
	case v <= math.MaxUint8:
		return append(b, 0xcc, byte(v)) // uint 8
	case v <= math.MaxUint16:
		return append(b, 0xcd, byte(v>>8), byte(v)) // uint 16
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v)) // uint 32
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v) // uint 64
}

// appendMsgpackInt appends a signed integer in its shortest form; positive ones take the unsigned forms.
func appendMsgpackInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return appendMsgpackUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v)) // negative fixint
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v)) // int 8
	case v >= math.MinInt16:
		return append(b, 0xd1, byte(v>>8), byte(v)) // int 16
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v)) // int 32
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v)) // int 64
}

// appendMsgpackFloat takes the short form when it loses nothing. NaN keeps the long one.
func appendMsgpackFloat(b []byte, v float64) []byte {
	if f := float32(v); float64(f) == v {
		return binary.BigEndian.AppendUint32(append(b, 0xca), math.Float32bits(f)) // float 32
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v)) // float 64
}

// appendJSONFloat keeps the mark of a float on whole numbers, so that a value's kind survives. JSON has no NaN and no
// infinities: they become null.
func appendJSONFloat(b []byte, v float64) []byte {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return append(b, "null"...)
	}
	// The thresholds are those of JavaScript and of encoding/json: exponents only where digits would be many.
	format := byte('f')
	if a := math.Abs(v); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	start := len(b)
	b = strconv.AppendFloat(b, v, format, -1, 64)
	for _, c := range b[start:] {
		if c == '.' || c == 'e' {
			return b
		}
	}
	return append(b, ".0"...)
}

// hexDigits are the digits of \u escapes.
const hexDigits = "0123456789abcdef"

// appendJSONString appends s quoted. Bytes that are not UTF-8 become U+FFFD. Runs of plain characters are copied in one
// piece.
func appendJSONString[T string | []byte](b []byte, s T) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			// Only the bytes of one character are looked at, so the conversion doesn't allocate.
			v, n := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			if v != utf8.RuneError || n != 1 {
				i += n
				continue
			}
			b = append(append(b, s[start:i]...), "\ufffd"...)
		} else {
			b = appendEscape(append(b, s[start:i]...), c)
		}
		i++
		start = i
	}
	return append(append(b, s[start:]...), '"')
}

// appendEscape appends a character that must not stand bare in a JSON string.
func appendEscape(b []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(b, '\\', c)
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&0xf])
}
