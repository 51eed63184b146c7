package multimodal

import (
	"encoding/json"
	"strconv"
)

// Routers tell images apart by tokens that no vocabulary has: this many from routeBase, by the first digits of an
// identity. Dynamo's routers and workers reckon alike.
const (
	routeBase = 1_000_000
	routeMask = 1<<30 - 1
)

// RoutingTokens returns an expanded prompt in which each image's place is filled with a token of the image's own, so
// that block hashes over it tell images apart. identities has one for each placeholder; ok is false for one that doesn't
// begin with 16 hex digits, or for a place outside the prompt.
func RoutingTokens(e *Expansion, identities []string) (tokens []uint32, ok bool) {
	if len(identities) != len(e.Placeholders) {
		return nil, false
	}
	tokens = append([]uint32(nil), e.Tokens...)
	for i, p := range e.Placeholders {
		if len(identities[i]) < 16 || p.Offset < 0 || p.Length < 0 || p.Offset > len(tokens)-p.Length {
			return nil, false
		}
		n, err := strconv.ParseUint(identities[i][:16], 16, 64)
		if err != nil {
			return nil, false
		}
		for j := range p.Length {
			if p.IsEmbed == nil || j < len(p.IsEmbed) && p.IsEmbed[j] {
				tokens[p.Offset+j] = routeBase + uint32(n&routeMask)
			}
		}
	}
	return tokens, true
}

// AppendTokens appends token ids as a JSON array: prompts are long, and this is what takes the time.
func AppendTokens(dst []byte, tokens []uint32) []byte {
	dst = append(dst, '[')
	for i, t := range tokens {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(t), 10)
	}
	return append(dst, ']')
}

// RoutingInfo is mm_routing_info of the worker protocol.
func RoutingInfo(tokens []uint32) json.RawMessage {
	dst := AppendTokens([]byte(`{"routing_token_ids":`), tokens)
	dst = append(dst, `,"block_mm_infos":[],"expanded_prompt_len":`...)
	return append(strconv.AppendInt(dst, int64(len(tokens)), 10), '}')
}
