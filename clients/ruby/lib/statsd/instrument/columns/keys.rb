# frozen_string_literal: true

module StatsD
  module Instrument
    class Columns
      # The keys of the bins of a sketch: the agent's, bit for bit.
      # @api private
      module Keys
        # The ratio between neighbouring bins; its logarithm, the agent's constant; and its root.
        GAMMA = 1.015625
        LN_GAMMA = 0.015504186535965254
        GAMMA_ROOT = 1.0077822185373186
        # By how much the powers of {GAMMA} and of the agent's constant differ, relatively, per bin.
        SLOPE = -5.9e-18
        # The key of the value 1.
        BIAS = 1338
        # The smallest value that is not in the bin of zero.
        NORM_MIN = 9.94185408912145e-10
        KEY_MAX = 32_767
        # The number of keys of one sketch. The lowest beyond it are counted in the lowest that stays.
        BINS_MAX = 4_096

        # {GAMMA} to the powers of 1, 2, 4 and so on.
        SQUARES = Array.new(15).tap do |squares|
          squares.each_index { |index| squares[index] = index.zero? ? GAMMA : squares[index - 1] * squares[index - 1] }
        end.freeze

        # Where the bins begin, for keys 1 to 4199. Each byte, in base64, is the number of units in the last place
        # between the boundary above a key and the estimate of {estimate}. The agent finds the boundaries by asking a
        # logarithm, and logarithms differ in the last place between systems, so they are written down here.
        STEPS =
          "+BL4AfgC9wP5AvkC+QX5BvkH+gX8CPsI/Qn9CPwL/w3+Df8MARIAEfIJ8gnxC/AN8A7yDfEP8g/xEfEQ8RPyFfAW8hfyGfEZ8xryAPQC" \
          "9QP0BfcE9wT6BfwG/AP8BfwG/gf+CP4J/ggACf4L/woADegP6w/pEukS6RPmE+gW6hjoGvQO9A/1D/cQ9RD2E/UU9Bb2FfYB9wL3A/gB" \
          "+AT4B/kG+Qb7B/kH+gn8CfwL/Aj/B/8I/wkACgAK7QrtDe4N7Q/tD+0Q7RLvEe4S7xXuGOwY8BnvGu8d8CDwD/gA+AL5AfkC+gT5BPoE" \
          "+QP6BPsG+gb8CPwJ/Qr+C/0I/gwAEAAQ4xHkEuET8gryCvMM8w3xDvMP8w7yEfMT8xHzFPMX8xnzGPUZ9AH0A/UD9AT2BPUN7w7vCPgK" \
          "+AH3AfcC+QT5A/kF+wT5BP0G/AX7B/sJ+wn+Cv4L/A4BD/8O/wPxBPIC+QL6AvoC/AP5BPoE+wf6Bv0H/Qj+Cv0J/gr/CwEPAA/0APUF" \
          "8wX2A/UE9gf8BPwE+wT9Bf0G/gj+B/4I/gv9CwALAAwBAPYC9gH2AvcF9wP2B/gI+Qn6CfgF/gb/CP0I/Qj/CQAJAQv/APcB9gT2BPoD" \
          "+AX3B/oH+gb4CPgI+gv7C/0L/Q0AB/4IAAcACvYB+AH4A/kD+AX4A/oE+wb7B/sH+wn8Cv4K/Ar+Df8P/xAAEQEB+AL6AvoC+QT6BPsD" \
          "+gT7B/sG/Qj+B/0I/Qr+DP8M/w4ADgIB8wDzA/QF8wP6A/sF+wT8BPwF/Ab9CP0I/gj+Cv8MAAsBDAAB8wL1A/YD9wb2BfgF+AT3B/0F" \
          "/Ab+Bv0I/Qf+Cf8IAAoADQEM9gH2A/cD+AT2AvgG+Ab3CPsI+Qn6C/sM/gb+B/8JAAgACQEKAQH4AfcC9wL4BPkD+AX4BvwH+wf6B/kJ" \
          "+wz7DP0N/g/+CAEIAf/4AfgC+AP5A/kE+QX7BvsF+gb7B/wJ/gn+C/0K/w3/DP8NABDwAfID+QL6AvsD+QP7BPoG/Af7Bv0H/An9CP0J" \
          "/gr/DP8OAA8BAfMC9QL1AvUE9gf1BPwE/AX9Bf0G/Ab9B/8J/gr/C/8I/Qj+BP4C/QYACP4I+QL6AvkD/AP9Av0D/wX+BQAG/QD7A/4D" \
          "/QL+BP4E/wUABf8GAAD9AfwB+wH8BP0F/gb+Bv8JAQH8Af4B/gP+BP8D/gX/BQEFAP/8AfsC/QP+Av4E/wQABwAF/wb6A/kD/AP7Bf0C" \
          "/wMAA/8EAQX8AvwC/AL+A/4D/QT/Bv8G/wf6AfoD/AP8A/0D/wX8CP0IAQP9APsD/gL+Af4C/gUABP8EAAUBAf0A+wH8Av4E/AT/Bv4H" \
          "AAcAAfn/+QL9BP4E/gMABP8EAgUAAPwA/QL9A/4D/QP+Bf8FAAT/BvoC+wP7AfwF/QX/Bv4F/wQABf0B/QH9Av0E/wP/Af8C/gP+A/8E" \
          "AQQAAP4B/gH/AwEF/AL/AgAE/wUCAf8AAAEAAwEC/wD/Af8CAAMBAf4A/wL+AgED/gH+A/8EAAL/BP8E/wP/AwAGAQD/Af8BAAMAA/4C" \
          "AAL/AQADAQH/AP8B/wUAA/4B/gL+AgACAP/9AQAD/wMAAv8A/wIAAf///gABA/8CAAL/Av8CAQH/AQEC/wP/AwEBAAEAAQACAf/+Af8C" \
          "AQEBAQABAAEBAAABAQD/AP8B/wH/AQAB/wD+AP8BAQL/Av4BAQMAAQEC/wEBAQEBAAEBAAAAAAEBAQEAAAAAAQABAQEBAv//AQAAAAAA" \
          "AQIBAQABAQIBAgEBAQEBAQEBAQEBAAEBAQIBAgECAgEBAgEBAgEBAgIDAQH/AgECAgIBAgEBAQIBAgEB/wACAQICAgEBAQACAQMBAgEA" \
          "AQIBAwACAgL/AgEDAgIAAwID/wIAAwAAAAICAgABAQEBAgAC/wECAgECAQMCAQACAgIAAQIBAQAAAwIEAQL/BAEF/gIAAgECAAMBAv4C" \
          "/wMBAwEE/gH/AgAEAQUBAP4D/wMABP8E/wH/Av8GAQUAAgAA/wIAAQED/gH/AwACAAMCBP8B/wIBAgEFAgL/A/8DAAMBBf4C/wIBBAAH" \
          "AQH+AAADAAMAA/8A/wIABAEEAAL/Af8CAgMCA/4CAAUAAvwG/wYACQAI+QH7A/4C/wP+A/8D/gUBBQEF/AL9A/0C/QP+BP8F/wYABwEH" \
          "AQP8AvsE/gT9Bf8F/wQABQIGAQL+Af0C/gP+BP8FAAcABgEHAAL8A/wD/QT9A/8G/gn/BwAHAgn6Av0B/wH/BP4FAAQABQEFAQb8Af4C" \
          "/QL/Bf8E/wT/BwAGAQj7AvsE/QX8Bf0DAAQABAAEAQT9A/0D/QL9A/4E/wT/BQAFAQcABP0C+wP9A/4F/gT/Bf4JAQoBAf0B/gL+A/4E" \
          "/wQBBgEGAQYAAv0B/QP9A/4D/wX/CP8FAAYDCPoD+gL9Av0D/wUABP8FAQQABf0A/gH9Av8F/gT4BPkC9gP3BPkD+Af5B/kH+An7CvoM" \
          "+wX+Bv8IAQn/CQAKAQL4AfcB+QL4A/kG+QT5BfsG+wf7B/wI/Ar+Df8L/g3/DgEIAQn6AvgC+QP4A/kE+gT5BfoF+wb9CPsJ/An9Cv4K" \
          "/gz+DAENAQ8BA/MD8gL6AvsD+wT8A/sF/Af9BvwH/Aj9Cf8J/wn+DAANAQ7/AvQB9AP1A/YC9gb2CfsD+wT8Bv0G/Qb+B/0I/goACv8K" \
          "/wsADfYB9gH2A/YF+AT3BvgG+Af4CfsI/Qb+B/4I/gcABwAJ/wsACwIB9wL2AfcC+QP4BfkE+gX6B/oJ+wv6C/wJ/gv+BgEH/wkACgEA" \
          "+AL4AvgE+AP5BPkF+gb6BvoG+wj7Cv0K/Qr9DP8Q/w7/DwIB+gH5AfoC+wP6BPsE+gT7BfsG/Ab8CPwJ/gz/CgAL/wsADgEP9QL0BfQE" \
          "9QX7A/oE+gT8BfwF/gb+B/4H/Qf/CP4K/goBCgIMAAT2AvUB9gL2BPcE+QT3B/oF/Qb8Bv0G/wf/CQAJ/woACwALAQH2AfcC9QL4AvgG" \
          "+Qf3BfgH+Qn6CvoK/Az+B/8IAAf/CAAIAQr4APgA9wP5BPkE+QT5BfoG+gj7B/wM/Qv9C/sM/w7+DgAIAQcCAPkC+gH4AfoD+gT6BPsF" \
          "+wf8CPwH+wn+Cf0K/wsACwANAhIBEPIR8wr6CvoH/wf/CQAJAAkBC+0M7A3sDu4O7BDtEu0R7RTtFe0W7RjuF+4c7h7wHvgQ+RH4EvgA" \
          "+AD4AvoF+QT5BPsE+wb6B/0G/An9C/4L/gv+DP4OABAAEAIR4gvxCvEK8gzyDPEN8g/yEPES8xLxFPIU8hbzFvQY8hn0HvUB8wD0A/QE" \
          "9QX2A/sE+wX8BvwG/Qb8B/0H/gf+Cv8MAAr/DQEN6Q7pDuoQ6RHpFOoV6BXpFukZ9Qz1DvQP9hH2EPYS9hP2FfYW9wH4A/cD+AT2BfkE" \
          "+Ab4BvgG+wn6C/sK+gr9B/4I/ggACAAKAQzvDO4M7wzuDu8P7xDuEvAV7xTuFe4W7xnuGe8a7x/xIPAg+AH5APgD+gP6A/kD+wX6BfoF" \
          "+wb7B/wI/gn8Cv4MAAz+DQIPARDlD+US4xXzDPMM8gzxDfMO8hDzEPIS8xPzFPIW9Bb0GPQY9Bn0AfUE9QL0A/cE9gb2BfoD/QT8B/0G" \
          "/gb+B/4H/wf/CP8KAQ0BDOoN6w/sEOoR6hLpFOwX6xbqGOoZ7Br1DfcO9hH2EvYS9hT3AvYB9wH4AvcE+Af5BvgH+wb8CPsH/Aj7CvwN" \
          "/g3+Df8IAQgACvAK8AvvDfAN7g3wD/AP7xDvEvAT8BbvFfAW8RjwGu8a8xzxH/IE8wP5A/oB+gL7A/sD+wT8B/0G/Af8B/wI/gn+Cv8N" \
          "AA0BDf8P5w/lEuQS5hTkF/QN8gzyDfMO9A/yD/QR9BPzFPQU9BX1F/UZ9gD3AfUD+Ab4BfcF9wf4B/kJ/gT9B/4G/gf9B/8J/wn/Cf8L" \
          "AgvrDusN6w/sEOwQ6xLtE+wV6xntGOwZ7hvtD/cP+BD3EvcT9wL3AfcC9wL5BPkD+AX5B/oG+Qf7B/sJ/Ar+Cv0M/hD/Dv4PAQjwC+8K" \
          "8QrwDPAN8Q3vD/EP8BHxEfAS7xXwFvIW8RjxGfIb8B30//QE9AX1AvoE+wL8BfsE+wT9BvwH/Aj8CP4J/gv/CgAKAQ4BD+cR5xDoEOgT" \
          "6BPqFOgN9A30DfQP9A/0EPQR9BL1FPUW9Rf1AvYA9QL4BPcD9gX5BvkG9wf6CPoK+wv+Bv8H/ggACP4JAQkBCu0K7AztDu4Q7g7tD+0Q" \
          "7hPsFO4V7hntGe4b7R3uHu4P9hH4E/kB+QL3AfgB+gL4BPgD/AX8BvoH/Aj7B/0J/Qn+CgEL/Q8BEQIR4QnxCvIK8gvxDPEN8hDxDvIR" \
          "8hHyEvIT8xTyGPIY8hjxGfIB9AL0AfQD9AP1B/wC+gP8AvwF/QX9BfwI/gj/Cv4J/wsBDAAL6Q3qEesQ6RLnEuoT6RTpFukX6gz1DvUP" \
          "9Q71EfUR9RL2E/cW9gL2AfcD+AL4AvgE+gT5BfsJ+iTdJd0o3SrcLe4X7hnuG+8S5QH3FeQC+BflAvkb4wb5HeEG+h/iCPsj4wn+KOEN" \
          "/yvgDwIu8AjhGvEK3x3xDt4g8A3cI/AQ2ybxEdss8RbaLvEX2TLxGtc38hzWA/Mj1ALzE+oC+xXpBPwW6QT9G+oG/BzpCP4f6QkAIOcM" \
          "AijnDswp5xDMLucUyzLnF8k59Q3iH/UO4yH1EOEj8xPhKvQU3yv2F98C9hnfAvce3Qb4INsG+SPcCfom2wj+F+0I/hjtCAAb7gkAHe0L" \
          "2SLtD9cl7RDXJ+wS0yzuFNQx7RnSM+wZ0TruHc4f+RDmI/gT5QL4FeYB+RbmA/sY5AX8H+QF/CDkCP0k5Av+J+MN/y3jD/8w4hHgG/IM" \
          "4RzwDN8h8g7eIvEP3SfyE9wp8hXcLvQX2jL0GtkC9BzYAvMi2Af2JOsE+xTqBPsX6wb9G+oH/h3pCv8f6QsAI+kNASbpEM8o6RDPLukV" \
          "yzHrFcs36Q7kIPUO5SH2EOMk9xLiKPcW4QH2F+AC9xngBPke3gb6It4I+iTeCfso3Qv9K+8I/xnuB/8c7gvaH+0L2iHvDdgm7xDYJ+8Q" \
          "1izuFNUv7xfTNe8b0jnxHtI/8BHqAfoV6QL5FuUD+xjmBPsZ5Qb7HeUJ/CDlCP8j5Az/JuYMACvkEccv4xTGGvIK4hzzDOEf8xHgIvER" \
          "3ibzEd0p9BTbLvUX3DHzGtsB9B/ZAvYg2AX3J9cH+xXsBfwW6gX/GOoI/hzrCAAe6gsAIusM1CTqENEq6xHPLeoTzzLqF8026xvMH/YP" \
          "5CL2EeQl9hPjKPgW4wL3GOID+RvhBPgc4gb5IOAJ+yTfCf4o4Av+K+AG/xrwCwAb7gnbHu8M3SLvDdkl7xDaKO0S2CvvFNUw8BbVNPAb" \
          "1DjxHtMA8SHoAfoS6QL6FukD+hfnBfwZ6AX8HOUI/SHmCf4j5wv/J+UOASrmEckw5hPGM+YK4x7zDOIf8w7hI/MQ3yXzE94p9RTfLPQY" \
          "3QL1G9sC9h3cBPgg3QT3JdoJ+SnsBv0X7Qf9GusH/xzsCv8f6wvXIusO1ibsD9Mq7RPRLesT0TLsGM817RrOO/U="
        private_constant :SQUARES, :STEPS

        # Finds the key of a value: the logarithm is right but for the neighbour, and the boundaries decide.
        # @api private
        class Table
          # @return [Array<Float>] for each key the smallest value above it
          attr_reader :bounds
          # @return [String] the same, as an array of doubles of the machine
          attr_reader :packed

          # @param bounds [Array<Float>]
          def initialize(bounds)
            @bounds = bounds.freeze
            @packed = bounds.pack("d*").freeze
            @size = bounds.size
            freeze
          end

          # @param value [Float] finite
          # @return [Integer]
          def key(value)
            return -key(-value) if value < 0.0
            return 0 unless value >= NORM_MIN

            key = ((Math.log(value) / LN_GAMMA) + BIAS).round
            return beyond(key, value) if key >= @size

            if value >= @bounds[key]
              key + 1
            elsif value < @bounds[key - 1]
              key - 1
            else
              key
            end
          end

          private

          def beyond(key, value)
            return @size - 1 if value < @bounds.last

            key > KEY_MAX ? KEY_MAX : key
          end
        end

        @table = nil

        class << self
          # @return [Table]
          def table
            # Other Ractors may not write here.
            return Table.new(bounds) unless Ractors.main?

            @table ||= Table.new(bounds)
          end

          # Returns {GAMMA} to an integer power, by products in a fixed order.
          # @return [Float]
          def power(exponent)
            n = exponent.abs
            product = 1.0
            at = 0
            until n.zero?
              product *= SQUARES[at] if n.odd?
              at += 1
              n >>= 1
            end
            exponent.negative? ? 1 / product : product
          end

          # Estimates the smallest value above a key, to less than 128 units in the last place.
          # @return [Float]
          def estimate(key)
            middle = power(key - BIAS) * GAMMA_ROOT
            middle + (middle * ((key - BIAS) * SLOPE))
          end

          private

          def bounds
            steps = STEPS.unpack1("m").unpack("c*")
            bits = (1..steps.size).map { |key| estimate(key) }.pack("G*").unpack("Q>*")
            bits = bits.zip(steps).map(&:sum)
            bits.pack("Q>*").unpack("G*").unshift(NORM_MIN).freeze
          end
        end
      end
    end
  end
end
