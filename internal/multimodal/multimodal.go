// Package multimodal names the nouns of media in a request: where they come from (Source), what image files are turned
// into (Pixels, Item), by whom (Decoder, Processor), and what that does to the prompt (Expansion). Its children
// implement them.
package multimodal

// Kind is a kind of media, named as the worker protocol names its parts.
type Kind string

// The kinds a chat message may hold.
const (
	ImageURL Kind = "image_url"
	VideoURL Kind = "video_url"
	AudioURL Kind = "audio_url"
)

// Source is one piece of media as the client gave it.
type Source struct {
	Kind Kind
	URL  string // http, https or data
	Path string // JSON path of the content part, for error messages
}
